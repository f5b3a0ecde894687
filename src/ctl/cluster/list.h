/* SPDX-License-Identifier: Apache-2.0 */
/* list: a list of objects in the JSON that a router answers with, as a table. */
#pragma once
#include "ctl/ctl.h"

/* A member of each object. The text of "at_unix_ms" is a time (UTC). */
struct ctl_list_column {
	const char *key, *header;
	bool right;
};
/* Print |text|, a router's answer in JSON, as it is for -o json, else by |show|. */
CGN_RC ctl_text_show(const struct ctl_args *a, const char *text,
	cgn_rc (*show)(struct cgn_str text, struct cgn_err *err), struct cgn_err *err);
/* Print the list |key| of |doc|. BAD_GATEWAY: there is none. */
CGN_RC ctl_list_show(struct json_val doc, const char *key, const struct ctl_list_column *columns, size_t n,
	struct cgn_err *err);
