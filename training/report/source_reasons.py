"""Reasons of the defaults by which delimited text is read."""

SOURCE_REASONS: dict[str, str] = {
    "data.csv.delimiter": "The usual separator of delimited text.",
    "data.csv.quote": "The usual quote character.",
    "data.csv.null_values": (
        "Only an empty field counts as missing; other marks such as ? must be named."
    ),
    "data.csv.decimal": "The usual decimal point.",
    "data.csv.header": "The first line names the columns.",
    "data.csv.skip": "The first line is the header.",
    "data.csv.skip_below": "The first row stands below the header.",
    "data.csv.empty_columns": "Each column holds something.",
    "data.csv.unnamed": "A column without a name is a mistake until someone says what it is.",
}
