/* SPDX-License-Identifier: Apache-2.0 */
/* exposition, inside: the parts of a page. */
#pragma once
#include "policy/node/engine/prom.h"
#include "policy/node/exposition/exposition.h"

/* Samples of one family that are in one piece. A family may have several; they follow each other. */
struct exposition_span {
	uint32_t name_at, name_n, help_at, help_n, type; /* type: index of exposition_types */
	uint32_t order, text_at, text_n;                 /* order: of the spans as they came */
};

struct exposition_page {
	char *bytes; /* Names, HELP texts and samples */
	size_t n_bytes;
	struct exposition_span *span; /* By name, then order */
	uint32_t n;
};

#define EXPOSITION_UNTYPED 0U
extern const char *const exposition_types[];

static inline struct cgn_str exposition_name(const struct exposition_page *p, const struct exposition_span *s)
{
	return (struct cgn_str){p->bytes + s->name_at, s->name_n};
}
/* True if samples of the family may fit one of the selectors, by their names. */
bool exposition_match_family(const struct exposition_match *list, struct cgn_str family);
/* True if the sample fits one of the selectors. */
bool exposition_match_fits(const struct exposition_match *list, const struct prom_sample *s);
