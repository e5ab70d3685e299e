"""The text of programs in SQL: lists of columns, errors of syntax in own words, and other systems' forms."""
