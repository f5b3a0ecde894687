/* SPDX-License-Identifier: Apache-2.0 */
/* hook: the program behind hooks.before_url and hooks.after_url, and how it answered about each request. */
#pragma once
#include "fake.h"

struct hook_book {
	unsigned allowed, refused, failed; /* Answers before */
	unsigned after_allowed, after_refused, after_failed;
};
extern struct fake hook_fake; /* On port 8600 */
extern bool hook_calm;        /* The hook allows all from now on */
/* Return the book of the request that the question is about; NULL: it is not known. */
extern struct hook_book *(*hook_find)(struct cgn_str question);
