"""The adapter to PySpark: everything private of PySpark and py4j, and jobs on executors."""
