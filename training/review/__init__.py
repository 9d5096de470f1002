"""Static review of training and model code: the well-known mistakes, found with `ast` alone;
nothing is imported or run.

sources     a file or notebook as text, and the comments that allow a finding
syntax      names through imports, small questions about expressions
program     scopes, bindings, and where a value comes from
trace       what happens in which order, with the helpers of the same file put in place
values      what a tensor is: which loss, which activation it went through
rules_*     the rules, a family a file; each holds its page of the docs
engine      a file, many files, allowances
changed     lines changed against a revision
formats     text, JSON, SARIF
command     what the command line and the pre-commit hook share
"""
