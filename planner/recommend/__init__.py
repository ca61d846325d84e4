"""Which settings? Search, ranking, reasons; and the plan that comes out."""
