/* SPDX-License-Identifier: Apache-2.0 */
/* quote, inside: the book that workers share, and a quote as JSON. */
#pragma once
#include <pthread.h>

#include "base/json/json.h"
#include "router/answer/quote/quote.h"

#define GW_QUOTES_TAG 0x64717001U
struct gw_quotes {
	uint32_t tag;
	pthread_mutex_t lock;
	struct quote_book *book;
	struct metric_cell *sides[QUOTE_FIGURES][3]; /* By enum quote_side. */
	struct metric_cell *widths[QUOTE_FIGURES];   /* NULL: the figure is not a time. */
};

/* Return whether quotes are made. */
bool gw_quotes_are_made(const struct gw_req *r);
/* Append the quote of the request as an object. */
void gw_quote_json(const struct gw_req *r, struct json_out *j);
