"""Payload values as JSON text plus array bytes, and back, without loss.

A value stays as it is if JSON in PostgreSQL's JSONB and in SQLite keeps it. Any other value gets a
tag: it becomes an object with one key, which begins with `$`. User keys that begin with `$` get a
second one.

| tag | value |
|---|---|
| `$array`, `$scalar` | `[dtype, shape, offset, nbytes]` into the row's `arrays` bytes |
| `$bytes` | `[offset, nbytes]` into the row's `arrays` bytes |
| `$float` | `nan`, `inf`, `-inf`, `-0.0`, or the digits of a whole float from 1e16 on |
| `$int` | the hex digits of an integer beyond 64 bits |
| `$str` | text with U+0000 or lone surrogates: six hex digits and `;` a character: sortable |
| `$tuple`, `$set`, `$frozenset`, `$dict` | lists; a `$dict` (keys that are not text) lists pairs |
| `$datetime`, `$date`, `$time`, `$timedelta`, `$decimal`, `$uuid`, `$complex` | text or numbers |

`ExactEncoder` has three more tags:

| tag | value |
|---|---|
| `$number` | `[dtype, number]`: a numpy scalar |
| `$tensor` | `[dtype, array]`: a torch tensor; the array has its bits where numpy lacks the dtype |
| `$namedtuple` | `[module, qualified name of the class, names of the fields, values]` |
"""
