/* SPDX-License-Identifier: Apache-2.0 */
/* route: the routes of the gateway, one row of routes.def each: method, path, who answers, and which scope a key needs. Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/core/str.h"

enum gw_route_kind {
	/* with a body, which names a model */
	GW_RELAY,
	GW_MEDIA,
	GW_COUNT,
	GW_OLLAMA,
	GW_OLLAMA_SHOW,
	GW_QUOTE,  /* takes the kind of the route that it is a quote of */
	GW_SELECT, /* takes the kind of the route that a node is selected for; selection/ */
	GW_STORED, /* names an answer instead, with or without a body */
	GW_NATIVE,
	GW_ABOUT, /* without a body */
	/* with a body of its own kind, or none: files/ reads it */
	GW_BATCH,
	/* answered from the head */
	GW_INDEX,
	GW_MODELS,
	GW_MODEL,
	GW_HEALTHZ,
	GW_SUMMARY, /* the cluster tells a peer of itself */
	GW_READYZ,
	GW_VERSION,
	GW_OLLAMA_TAGS,
	GW_OLLAMA_PS,
	GW_OLLAMA_VERSION,
	GW_OLLAMA_LACKS,
	GW_SELECTED /* about a selection that was made; selection/ */
};
static inline bool gw_route_has_body(enum gw_route_kind kind)
{
	return kind <= GW_ABOUT;
}
#define ROUTE_OPEN    0x100U /* no key is asked for */
#define ROUTE_ANY_KEY 0U     /* any valid key will do */
struct gw_route_row {
	const char *method, *path;
	enum gw_route_kind kind;
	unsigned scope;
	bool once; /* another try would repeat costly work: it is made only where the engine did not begin */
};
struct gw_route_rows {
	const struct gw_route_row *v;
	size_t n;
};
extern const struct gw_route_rows gw_routes;

/* True for a relayed route that some kinds of engines do not have: such an engine is asked only where no other one serves the
 * model. |target|: the path at engines. */
bool gw_route_may_lack(enum gw_route_kind kind, struct cgn_str target);
/* May lines of a batch go to |path|: is it a relayed route with a prompt? */
bool gw_route_takes_batch(struct cgn_str path);
/* Return the route that "?for=PATH" of |path| means, |fallback| without it; NULL: that is not a relayed route
 * with a prompt. */
const struct gw_route_row *gw_route_meant(struct cgn_str path, const char *fallback);
