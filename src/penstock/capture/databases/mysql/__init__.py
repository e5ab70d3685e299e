"""MySQL and MariaDB: changes from the binary log, rows in a transaction whose place in it is known."""

from penstock.capture.databases.mysql.kind import MYSQL

__all__ = ["MYSQL"]
