"""What a call would do: the programs, paths, hosts and settings that its arguments come down to."""
