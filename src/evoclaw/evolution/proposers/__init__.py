"""The proposers of genomes: what suggests changes from train cases and recorded runs."""
