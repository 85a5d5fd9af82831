"""What the parts of a broker build on.

serving       what this broker may do in this turn
role          who decides that, and what replication reports to it
context       the settings in force, the output and the verdict of the turn
mastership    whether state that was read from the log still holds
"""
