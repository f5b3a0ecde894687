/* SPDX-License-Identifier: Apache-2.0 */
/* price: the price of a joule, from the series of router.energy.series: a file, read every 10 s, or a URL, asked every
 * router.energy.series_interval. Of a URL the last good text is kept, at most PRICE_MAX_TEXT bytes. On the control loop. */
#pragma once
#include "base/core/buf.h"
#include "base/weburl/weburl.h"
#include "io/wire/http/client.h"
#include "io/wire/webask/webask.h"

#define PRICE_MAX_TEXT ((size_t)1 << 20)

struct router_price {
	cgn_nsec next; /* When the series is looked at again. */
	bool told, fresh;
	/* The series of a URL. */
	char *where; /* The URL that |http| is for; NULL: none. */
	struct http_client *http;
	struct weburl url;
	char path[512];
	struct webask *ask;  /* NULL: no request is under way. */
	cgn_nsec ask_at;     /* When the URL is asked again. */
	struct cgn_buf text; /* The last good text. */
	char why[300];       /* Why the last request brought none; "": it did, or there was none. */
};

struct router;
void router_energy_follow(struct router *r,
	cgn_nsec now); /* Show the nodes' power; read the series if it is time. */
void router_price_close(struct router *r);
