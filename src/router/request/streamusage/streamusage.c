/* SPDX-License-Identifier: Apache-2.0 */
#include "router/request/streamusage/streamusage.h"

#include "base/log/log.h"
#include "policy/text/prompt/prompt.h"
#include "router/shared/worker/worker.h"

#define MEMBER ",\"stream_options\":"

/* Is the request of an API whose streams have usage only if it is asked for? */
static bool is_openais(const struct gw_req *r)
{
	enum prompt_api api = prompt_api_of(r->client.target);
	return r->answer.ollama == NULL && (api == PROMPT_CHAT || api == PROMPT_COMPLETIONS);
}

bool gw_streamusage_check(const struct gw_req *r, struct body_fault *fault)
{
	return !is_openais(r) || cgn_ok(body_check_options(&r->prompt.facts, fault));
}

static bool is_asked_for(const struct gw_req *r)
{
	return is_openais(r) && r->prompt.facts.stream && !r->prompt.facts.asks_usage && r->selecting == NULL;
}

bool gw_streamusage_plan(struct gw_req *r)
{
	struct gw_prompt *p = &r->prompt;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf member = {0};
	/* The body that continues an answer has no "stream_options" of the client any more. */
	if (!is_asked_for(r) || p->usage_asked.n > 0)
		return true;
	cgn_buf_putz(&member, MEMBER);
	usage_ask_put(p->facts.options, &member);
	p->usage_asked = cgn_arena_str(&r->arena, cgn_buf_view(&member));
	if (p->facts.options.raw.p != NULL)
		p->usage_own = cgn_str_of(
			cgn_arena_fmt(&r->arena, MEMBER "%.*s", CGN_STR_ARG(p->facts.options.raw)));
	if (member.bad || p->usage_asked.p == NULL ||
		(p->usage_own.p == NULL && p->facts.options.raw.p != NULL))
		return false;
	body_drop_options(r->body.bytes.p, &p->facts);
	return true;
}

static _Atomic bool *refusal_of(const struct gw_req *r, uint16_t slot)
{
	return &r->w->shared->choice.stats[slot].refuses_usage;
}

/* An answer that is resumed loses the counts that its engines tell unasked. */
static bool is_told_anyway(const struct gw_req *r, const struct engine_ops *kind)
{
	return kind != NULL && kind->counts_streams && !r->answer.head_sent;
}

struct cgn_str gw_streamusage_name(struct gw_req *r, uint16_t slot, const struct engine_ops *kind,
	struct cgn_str name)
{
	const struct gw_prompt *p = &r->prompt;
	r->answer.usage_hidden = false;
	if (p->usage_asked.n == 0 || p->name_n == 0 || plan_leg(&r->plan.legs)->role == LEG_PREFILL)
		return name;
	bool asks = r->answer.usage_doubt == 0 && !is_told_anyway(r, kind) &&
		!atomic_load_explicit(refusal_of(r, slot), memory_order_relaxed);
	struct cgn_str member = asks ? p->usage_asked : p->usage_own;
	char *text = cgn_arena_get(&r->arena, name.n + member.n + 1);
	if (text == NULL)
		return name;
	memcpy(text, name.p, name.n);
	if (member.n > 0)
		memcpy(text + name.n, member.p, member.n);
	r->answer.usage_hidden = asks;
	return (struct cgn_str){text, name.n + member.n};
}

bool gw_streamusage_refused(struct gw_req *r)
{
	static const char *const names[] = {"stream_options", "include_usage"};
	const struct gw_attempt *a = &r->attempt;
	struct cgn_str said = a->opening.bytes;
	bool named = false;
	if (!r->answer.usage_hidden || !a->head_seen || (a->status != 400 && a->status != 422))
		return false;
	for (size_t i = 0; i < CGN_COUNT(names) && said.p != NULL; i++)
		named = named || memmem(said.p, said.n, names[i], strlen(names[i])) != NULL;
	if (named)
		r->answer.usage_doubt = 1 + (uint32_t)a->call.slot;
	return named;
}

void gw_streamusage_answered(struct gw_req *r)
{
	const struct gw_attempt *a = &r->attempt;
	bool proven = r->answer.usage_doubt == 1 + (uint32_t)a->call.slot && a->status < 300;
	if (!proven || atomic_exchange_explicit(refusal_of(r, a->call.slot), true, memory_order_relaxed))
		return;
	cgn_log(WARN, "gateway.usage_refused", F_STR("node", a->call.node_id),
		F_STR("then", "its streams are asked for without usage; their tokens are estimated"));
}

struct cgn_str gw_streamusage_shown(const struct gw_req *r, struct cgn_str events, struct cgn_buf *out)
{
	bool changed = r->answer.usage_hidden && usage_events_shown(events, out);
	return changed ? cgn_buf_view(out) : events;
}
