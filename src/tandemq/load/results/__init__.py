"""What a run of load returns: figures, histograms, reports."""
