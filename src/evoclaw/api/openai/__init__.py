"""The agents as OpenAI's chat completions, for programs that know nothing else."""
