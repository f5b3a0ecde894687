/* SPDX-License-Identifier: Apache-2.0 */
/* view: a cluster's status as lines of text for a screen of any size. It reads no terminal and no clock. */
#pragma once
#include "cognitora/v1/control.pb-c.h"
#include "ctl/ctl.h"

enum top_column {
#define COLUMN(id, key, header, width, number, help) TOP_##id,
#include "ctl/top/columns.def"
#undef COLUMN
	TOP_COLUMNS
};

/* A node's rate needs the status before the one that is shown. */
#define TOP_NODES 4096
struct top_rate {
	uint64_t name;     /* The hash of the node's id */
	uint64_t requests; /* The node's total at |top_view.at|. */
	double per_second; /* Below 0: not known yet. */
};

struct top_view {
	size_t width, height; /* Characters and lines; height 0: all nodes. */
	bool colour, keys;    /* Colours; the line that names the keys. */
	enum top_column sorted;
	bool reversed;
	size_t first;        /* The first node that is shown, after sorting. */
	char filter[64];     /* Only nodes whose line has this text; empty: all. */
	bool filtering;      /* The filter is being typed. */
	bool help;           /* The keys are explained instead of the nodes. */
	const char *trouble; /* Why there is no newer status; NULL: there is. */
	char clock[16];      /* The time of day to show. */
	cgn_nsec at;         /* Time of the status; 0: none was seen. */
	struct top_rate rates[TOP_NODES];
	size_t n_rates;
};

/* Take the status that came at |now|. */
void top_view_take(struct top_view *v, const Cognitora__V1__StatusResponse *s, cgn_nsec now);
/* Write the screen: lines of at most |v->width| characters, each ended by |end|. |s| NULL: no status came yet. Keeps
 * |v->first| within the list. */
void top_view_write(struct top_view *v, const Cognitora__V1__StatusResponse *s, const char *end,
	struct cgn_buf *out);
/* Write one JSON object on one line. */
void top_view_json(const struct top_view *v, const Cognitora__V1__StatusResponse *s, struct cgn_buf *out);
/* Act on a key of the terminal. Returns false when the key ends the program. */
bool top_view_key(struct top_view *v, int key);

/* Keys that are more than a character. */
enum { TOP_KEY_UP = 256, TOP_KEY_DOWN, TOP_KEY_PAGE_UP, TOP_KEY_PAGE_DOWN, TOP_KEY_LEFT, TOP_KEY_RIGHT };
