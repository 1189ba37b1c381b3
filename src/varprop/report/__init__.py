"""From a folder of results to tables, figures and one HTML file. Reads rows, never models."""
