/* SPDX-License-Identifier: Apache-2.0 */
/* feed: an engine's KV events, as a part of its engineview. */
#pragma once
#include "base/json/json.h"
#include "base/pb/pb_tree.h"
#include "cognitora/v1/engines.pb-c.h"
#include "joint/node/enginefeed/enginefeed.h"
#include "policy/config/config.h"
#include "policy/node/proto/proto.h"

struct engine_events; /* policy/node/engine/launch.h */
struct engineview;

/* A name of a configured model. */
struct engineview_feed_model {
	const char *name;      /* The model's name or an alias */
	const char *canonical; /* The model's name */
	uint32_t block_tokens;
};
struct engineview_feed {
	bool on;                   /* The engine publishes KV events */
	struct enginefeed_cfg cfg; /* Strings are in the arena of engineview_feed_open */
	struct engineview_feed_model *models;
	size_t n_models;
	char model_text[257];      /* Model for which the sockets are open */
	struct holdings *holdings; /* Gets the blocks */
	struct enginefeed *ef;     /* NULL: not open */
	bool counts;               /* The events are the source for the engine's blocks */
	char text[256];            /* The source, as the node's description states it */
};
/* Where the events come from, and where the blocks go. All is borrowed; the last two outlive the feed. */
struct engineview_feed_at {
	const struct engine_events *events;
	struct holdings *holdings;
	struct telemetry *telemetry;
};
/* Read the settings of KV events, with copies in |arena|. The sockets are opened once the engine's models are known, since the
 * model's name enters the digests. CGN_INVALID: an endpoint, the topic or the ranks are wrong. CGN_NO_MEMORY. */
CGN_RC engineview_feed_open(struct engineview *v, const struct config *cfg, const struct config_engine *ce,
	const struct engineview_feed_at *at, struct cgn_arena *arena, struct cgn_err *err);
/* The engine's models are known, or changed. Does nothing without a feed. */
void engineview_feed_models_known(struct engineview *v);
/* Describe the digests of the blocks in the KV events. False: they do not count, or there are none. Texts are
 * borrowed. */
bool engineview_feed_chain(const struct engineview *v, Cognitora__V1__Chain *out);
/* Return the events for /engines; NULL: there are none. */
Cognitora__V1__EngineKvEvents *engineview_feed_new(const struct engineview *v, struct pb_tree *t);
