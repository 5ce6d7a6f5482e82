"""The paper's questions, asked again: what to run for each, and what to make of the runs."""
