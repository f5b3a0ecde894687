/* SPDX-License-Identifier: Apache-2.0 */
/* codec: bytes as text. Writers append to a buffer; readers are strict. */
#pragma once
#include "base/core/buf.h"
#include "base/core/str.h"

void base64_put(struct cgn_buf *out, struct cgn_str bytes);    /* RFC 4648 section 4, padded */
void base64url_put(struct cgn_buf *out, struct cgn_str bytes); /* section 5, not padded */
void hex_put(struct cgn_buf *out, struct cgn_str bytes);       /* lower case */
/* Append the bytes that |text| stands for. False, and nothing appended, on a foreign character or an odd
 * length; also when |out| is full (then it is bad). */
bool hex_get(struct cgn_buf *out, struct cgn_str text); /* both cases */
/* "%2F" and friends in a path; what is no escape stays as it is. |to| has room for text.n bytes; returns how
 * many there are. */
size_t percent_get(char *to, struct cgn_str text);
int hex_digit(char c); /* its value, both cases; -1 when it is none */
