/* SPDX-License-Identifier: Apache-2.0 */
/* feed: an engine's KV events as the source of its residency. */
#pragma once
#include "base/json/json.h"
#include "policy/config/config.h"
#include "policy/proto/proto.h"

struct engine;
struct engine_feed;
/* Read the settings of engine.kv_events. The sockets are opened once the engine's models are known, since the
 * model's name enters the digests. CGN_INVALID: an endpoint, the topic or the ranks are wrong. */
CGN_RC engine_feed_open(struct engine *e, const struct config *cfg, const struct config_engine *ce,
	struct cgn_err *err);
/* The engine's models are known, or changed. Does nothing without a feed. */
void engine_feed_models_known(struct engine *e);
/* Describe the digests of the blocks that the engine's KV events tell of. False: they do not count, or there are none.
 * Texts are borrowed. */
bool engine_feed_chain(const struct engine *e, Cognitora__V1__Chain *out);
void engine_feed_close(struct engine *e);
/* Append the "kv_events" value of /engines: an object, or null. */
void engine_feed_report(const struct engine *e, struct json_out *o);
