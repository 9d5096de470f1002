"""Static review of training and model code: find well-known mistakes with `ast` alone.

Nothing is imported or run.

sources     a file or notebook as text, and the comments that allow a finding
syntax      names through imports, simple questions about expressions
program     scopes, bindings, and where a value comes from
trace       calls in the order of execution, helpers of the same file inlined
values      what a tensor is: which loss takes it, which activation made it
rules_*     the rules, one file for each family; each holds its page of the docs
engine      a file, many files, allowances
changed     lines changed against a revision
formats     text, JSON, SARIF
command     shared by the command line and the pre-commit hook
"""
