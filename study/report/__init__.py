"""What people see of a study: tables, plots and one page, all made again from its folder."""
