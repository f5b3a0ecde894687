/* SPDX-License-Identifier: Apache-2.0 */
/* args: a command line cut into flags and words by the rows of a program's table. Accepted are "--name VALUE",
 * "--name=VALUE", and "-n VALUE" for a name of one letter; "-h" stands for "--help". */
#pragma once
#include <stdbool.h>

#include "base/core/err.h"
#include "base/core/str.h"

struct args_flag {
	const char *name; /* Without dashes; NULL: this row of the table is not for this command. */
	const char *meta; /* Name of the value in help; NULL: the flag takes none. */
};
struct args_table {
	const char *program; /* "cgn-router" or "cgn-ctl kv get": its --help is named in messages. */
	bool takes_words;    /* Arguments that are not flags are accepted; "-" is one. */
	size_t n_rows;
	struct args_flag (*row)(const void *user, size_t i);
	const void *user;
};
struct args {
	int argc;
	char *const *argv;
	int at; /* The next argument. */
};

#define ARGS_WORD SIZE_MAX
struct args_given {
	size_t row; /* Id of the flag; ARGS_WORD for a word. */
	const char
		*value; /* The word or the flag's value, borrowed from argv; NULL for a flag without value. */
};
static inline bool args_end(const struct args *a)
{
	return a->at >= a->argc;
}
/* Take the next argument, and the one behind it where that is the flag's value. CGN_INVALID with one sentence
 * that names the flag, and the nearest known one for a name that the table does not have. */
CGN_RC args_take(struct args *a, const struct args_table *t, struct args_given *out, struct cgn_err *err);
