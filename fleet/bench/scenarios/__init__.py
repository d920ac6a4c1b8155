"""What is measured: one file for each scenario, with one function `measure`."""
