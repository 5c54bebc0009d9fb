"""`qsync sh`: a console for the rows of one cluster."""
