/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of a command. */
#include "kvcached/resp/command_priv.h"

struct cgn_str resp_arg(const struct resp_conn *c, size_t i)
{
	return respcmd_arg(&c->cmd, c->text, i);
}

bool resp_arg_is(const struct resp_conn *c, size_t i, const char *word)
{
	return cgn_str_eq_nocase(resp_arg(c, i), cgn_str_of(word));
}

bool resp_key(struct resp_conn *c, size_t i, struct block_key *k, struct cgn_str *name)
{
	struct cgn_str s = resp_arg(c, i);
	if (s.n > BLOCK_MAX_NAME) {
		resp_fmt(c, "-ERR a key of %zu bytes: at most %d\r\n", s.n, BLOCK_MAX_NAME);
		return false;
	}
	bool is_digest = respcmd_key(s, &k->digest, &k->segment);
	*name = is_digest ? (struct cgn_str){0} : s;
	return true;
}

bool resp_number(struct resp_conn *c, size_t i, int64_t *out)
{
	if (respcmd_int(resp_arg(c, i), out))
		return true;
	resp_error(c, "ERR value is not an integer or out of range");
	return false;
}
