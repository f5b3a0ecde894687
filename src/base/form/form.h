/* SPDX-License-Identifier: Apache-2.0 */
/* form: finds fields of a multipart/form-data body (RFC 7578) without a copy. Linear in the body, no memory. */
#pragma once
#include "base/core/err.h"
#include "base/core/str.h"

#define FORM_PARTS_MAX 1024           /* Parts of a body. */
#define FORM_HEAD_MAX  ((size_t)8192) /* Bytes of a part's header fields. */

/* Return the boundary in the value of a Content-Type field; p is NULL when that is not multipart/form-data with a
 * boundary of 1 to 70 characters. Borrowed from |content_type|. */
struct cgn_str form_boundary(struct cgn_str content_type);

struct form_field {
	const char *name; /* Name of the field to find, without quotes and escapes. */
	struct cgn_str
		value; /* Value of the first part with that name, in the body; p is NULL: there is none. */
	struct cgn_str
		filename; /* The first part's filename, borrowed; its escapes are kept; p is NULL: none. */
	unsigned times;   /* Parts with that name. */
};
/* Find |n| fields in one walk. INVALID: |body| is not such a form, or exceeds a bound; |err| names the error
 * and its place. */
CGN_RC form_find(struct cgn_str body, struct cgn_str boundary, struct form_field *fields, size_t n,
	struct cgn_err *err);
