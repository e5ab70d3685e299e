"""Views as people see them: plain values, the lines of a chart, tables and charts for notebooks."""
