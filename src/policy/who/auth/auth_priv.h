/* SPDX-License-Identifier: Apache-2.0 */
/* auth_priv: functions of auth.c (one key) for keys.c (the set of all keys). */
#pragma once
#include "policy/who/auth/auth.h"

/* The place of a line, for messages. */
struct auth_place {
	const char *file;
	unsigned line;
};

/* Parse one line that is neither empty nor a comment. CGN_INVALID names |at| and the bad field. */
CGN_RC auth_line_parse(struct auth_place at, struct cgn_str line, struct auth_key *out, struct cgn_err *err);
