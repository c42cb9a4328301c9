"""How agents get better: the lineage of their genomes, outcomes of runs, cases and evaluation."""
