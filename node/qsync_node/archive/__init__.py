"""An archive from the outside: what readers of every kind share. Nothing here writes."""
