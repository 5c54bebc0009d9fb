"""Facts about the files of an archive: their kinds, and the pass over a file that finds them."""
