"""The archive of a replica set: one library for members, Spark jobs and the command line.

location     object stores and folders by URL
manifest     the files of a member, and their names
description  the manifest entry of a file, from its rows
compaction   the changes that compactions made
reader       the archive as readers see it
outputs      the files of a compaction, written and verified
store        one member's part, as its member sees it
uploads      which files are due for upload, and which local ones may be removed
uploader     the next operation of an archiver
restore      from a moment of an archive to the state of a new cluster
"""
