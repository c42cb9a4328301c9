"""Static analysis of calls: the programs, paths, hosts and settings that a call would use."""
