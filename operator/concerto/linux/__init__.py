"""What is read from the files of a Linux node, by agents and by commands that run on one, and limits of a process."""
