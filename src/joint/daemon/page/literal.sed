# Turn each line of a file into a string literal of C, without trigraphs.
s/[\\"]/\\&/g
s/??/?\\?/g
s/^/"/
s/$/\\n"/
