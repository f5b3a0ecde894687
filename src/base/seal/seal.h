/* SPDX-License-Identifier: Apache-2.0 */
/* seal: a text file that tells what it is and whether it is whole. The first line is "KIND FORMAT", the last one "sum "
 * with BLAKE3 of all before it, in hexadecimal digits. Pure. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"

/* Append the first line. Call with an empty |out|; lines follow, then seal_end. */
void seal_begin(struct cgn_buf *out, const char *kind, unsigned format);
void seal_end(struct cgn_buf *out);
/* Find the lines between the first and the last one. INVALID: another kind, a later format, or damaged; the sentence
 * says which. */
CGN_RC seal_open(struct cgn_str text, const char *kind, unsigned format, struct cgn_str *lines,
	struct cgn_err *err);
