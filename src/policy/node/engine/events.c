/* SPDX-License-Identifier: Apache-2.0 */
/* events: the endpoints of an engine's KV events. */
#include "policy/node/engine/engine_priv.h"

#define UNIX_PATH_MOST 100 /* A Unix socket's path has 107 bytes; ZeroMQ appends nothing. */
#define EVENTS_AFTER   1000
#define REPLAY_AFTER   1500

/* vLLM and SGLang bind an endpoint only when it is a Unix socket or its host is "*"; others they connect to. */
static const char *bind_form(const char *endpoint, struct cgn_arena *a)
{
	const char *colon = strrchr(endpoint, ':');
	if (strncmp(endpoint, "tcp://", 6) != 0 || colon == NULL)
		return endpoint;
	return cgn_arena_fmt(a, "tcp://*%s", colon);
}

static void endpoints_choose(unsigned port, const char *prefix, struct cgn_arena *a,
	struct engine_events *out)
{
	if (out->ranks == 1 && strlen(prefix) + 7 <= UNIX_PATH_MOST && prefix[0] == '/') {
		out->events = cgn_arena_fmt(a, "ipc://%s.events", prefix);
		out->replay = cgn_arena_fmt(a, "ipc://%s.replay", prefix);
		return;
	}
	out->events = cgn_arena_fmt(a, "tcp://127.0.0.1:%u", port + EVENTS_AFTER);
	out->replay = cgn_arena_fmt(a, "tcp://127.0.0.1:%u", port + REPLAY_AFTER);
}

CGN_RC engine_events_of(const struct config_engine *e, unsigned port, const char *prefix, struct cgn_arena *a,
	struct engine_events *out, struct cgn_err *err)
{
	bool publishes = e->managed && engine_ops_of(e->kind)->publishes;
	*out = (struct engine_events){.ranks = publishes && e->dp > 1 ? e->dp : e->kv_events_ranks};
	if (e->kv_events != NULL && strcmp(e->kv_events, "none") == 0)
		return CGN_OK;
	if (e->kv_events != NULL) {
		out->events = e->kv_events;
		out->replay = e->kv_events_replay;
	} else if (publishes) {
		endpoints_choose(port, prefix, a, out);
		if (out->replay == NULL)
			return CGN_FAIL(err, NO_MEMORY, "no memory for the KV events of an engine");
	} else {
		return CGN_OK;
	}
	if (out->events == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the KV events of an engine");
	if (!publishes)
		return CGN_OK;
	out->bind_events = bind_form(out->events, a);
	out->bind_replay = out->replay != NULL ? bind_form(out->replay, a) : NULL;
	if (out->bind_events == NULL || (out->replay != NULL && out->bind_replay == NULL))
		return CGN_FAIL(err, NO_MEMORY, "no memory for the KV events of an engine");
	return CGN_OK;
}

CGN_RC engine_arg_events(const struct engine_launch_ask *ask, bool enables, struct engine_launch *p,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct engine_events ev;
	CGN_TRY(engine_events_of(ask->engine, ask->url->port, ask->prefix, p->arena, &ev, err));
	if (ev.bind_events == NULL)
		return CGN_OK;
	struct json_out o = json_out_to(&text);
	json_open(&o, '{');
	if (enables)
		json_key_bool(&o, "enable_kv_cache_events", true);
	json_key_z(&o, "publisher", "zmq");
	json_key_z(&o, "endpoint", ev.bind_events);
	if (ev.bind_replay != NULL)
		json_key_z(&o, "replay_endpoint", ev.bind_replay);
	if (ask->engine->kv_events_topic != NULL)
		json_key_z(&o, "topic", ask->engine->kv_events_topic);
	json_close(&o, '}');
	engine_arg_pair(p, "--kv-events-config", cgn_buf_z(&text));
	return CGN_OK;
}
