/* SPDX-License-Identifier: Apache-2.0 */
/* control: takes resources from the queue, begins the work on them, and looks at them again when they are due. */
#include <stdlib.h>

#include "operator/control/control_priv.h"

static bool control_rests(const struct control *c)
{
	return control_heard(c) && c->n_queued == 0 && c->n_working == 0;
}

static struct work *work_free(struct control *c)
{
	for (size_t i = 0; i < CONTROL_WORKS; i++)
		if (c->works[i].resource == NULL)
			return &c->works[i];
	return NULL;
}

/* Take the next resource that is due; NULL: there is none. */
static struct item *queue_take(struct control *c, cgn_nsec now, cgn_nsec *next)
{
	cgn_list_each_safe (it, &c->queue) {
		struct item *i = CGN_CONTAINER(it, struct item, queue);
		if (i->working)
			continue;
		if (i->retry_at > now) {
			if (i->retry_at < *next)
				*next = i->retry_at;
			continue;
		}
		cgn_list_drop(&i->queue);
		i->queued = false;
		c->n_queued--;
		return i;
	}
	return NULL;
}

/* Begin to reconcile; ends with work_over. */
static void work_begin(struct work *w, struct item *resource)
{
	struct json_val object;
	const char *slash = strchr(resource->key, '/');
	w->resource = resource;
	metric_add(w->c->reconciles, 1);
	(void)cgn_str_copyz(w->space, sizeof w->space,
		(struct cgn_str){resource->key, (size_t)(slash - resource->key)});
	(void)cgn_str_copyz(w->name, sizeof w->name, cgn_str_of(slash + 1));
	if (!cgn_ok(json_parse((struct cgn_str){resource->text, resource->bytes}, &object, NULL, &w->err))) {
		work_over(w);
		return;
	}
	w->err.code = CGN_FINE;
	(void)cgn_str_copyz(w->uid, sizeof w->uid, k8s_meta(object, "uid"));
	if (resource_is_deleting(object)) {
		if (finalizer_is_set(object))
			deletion_begin(w);
		else /* Kubernetes deletes what it owned. */
			work_over(w);
	} else if (resource->kind == DESIRED_CLUSTER) {
		certs_begin(w);
	} else {
		work_objects(w);
	}
}

static void control_turn(struct cgn_hook *h)
{
	struct control *c = CGN_CONTAINER(h, struct control, turn);
	struct work *w;
	struct item *i;
	cgn_nsec now = cgn_loop_now(c->loop), next = UINT64_MAX;
	CGN_LIVE(c, CONTROL_TAG);
	if (!control_heard(c))
		return;
	while ((w = work_free(c)) != NULL && (i = queue_take(c, now, &next)) != NULL) {
		if (i->text == NULL)
			continue;
		i->working = true;
		c->n_working++;
		work_begin(w, i);
	}
	metric_set(METRIC_ONE(c->telemetry, OP_QUEUE), (double)c->n_queued);
	if (next != UINT64_MAX)
		cgn_timer_set(&c->retry, next - now);
}

static void on_retry(struct cgn_timer *t)
{
	control_wake(CGN_CONTAINER(t, struct control, retry));
}

/* ---- the clock ---- */

struct due_search {
	struct control *c;
	cgn_nsec now, next;
};

static void due_look(void *arg, struct item *i)
{
	struct due_search *s = arg;
	if (i->due == 0)
		return;
	if (i->due <= s->now) {
		i->due = 0;
		if (i->text != NULL)
			control_queue(s->c, i);
	} else if (i->due < s->next) {
		s->next = i->due;
	}
}

static void on_due(struct cgn_timer *t)
{
	struct control *c = CGN_CONTAINER(t, struct control, due);
	struct due_search s = {c, cgn_loop_now(c->loop), UINT64_MAX};
	CGN_LIVE(c, CONTROL_TAG);
	item_each(c, due_look, &s);
	if (s.next != UINT64_MAX)
		cgn_timer_set(t, s.next - s.now);
}

void control_fill(const struct control *c, struct pb_tree *t, Cognitora__V1__OperatorWork *to)
{
	CGN_LIVE(c, CONTROL_TAG);
	to->objects = c->n_items;
	to->queued = c->n_queued;
	to->working = c->n_working;
	to->rests = control_rests(c);
	for (size_t k = 0; k < DESIRED_KINDS; k++) {
		Cognitora__V1__OperatorWatch *w = PB_ADD(t, to, watches, operator_watch);
		w->kind = pb_text(desired_kinds[k].plural);
		w->connected = c->sources[k].connected;
	}
}

/* ---- open and close ---- */

static void item_free(void *arg, struct item *i)
{
	i->working = i->applying = false;
	item_drop(arg, i);
}

void control_close(struct control **take)
{
	struct control *c = CGN_TAKE_LIVE(take, CONTROL_TAG);
	if (c == NULL)
		return;
	cgn_hook_drop(&c->turn);
	cgn_timer_cancel(&c->retry);
	cgn_timer_cancel(&c->due);
	for (size_t i = 0; i < CONTROL_WORKS; i++)
		work_drop(&c->works[i]);
	for (size_t k = 0; k < DESIRED_KINDS; k++)
		k8s_watch_close(&c->watches[k]);
	item_each(c, item_free, c);
	free(c->space);
	free(c->prefix);
	free(c->tag_text);
	c->tag = 0;
	free(c);
}

CGN_RC control_open(struct cgn_loop *l, struct k8s *k, struct telemetry *t, const struct control_cfg *cfg,
	struct control **out, struct cgn_err *err)
{
	CGN_ON_EXIT(control_close) struct control *c = CGN_NEW(struct control);
	*c = (struct control){.tag = CONTROL_TAG, .loop = l, .k8s = k, .telemetry = t};
	for (size_t b = 0; b < CONTROL_BUCKETS; b++)
		cgn_list_init(&c->buckets[b]);
	cgn_list_init(&c->queue);
	cgn_hook_init(&c->turn, control_turn);
	cgn_timer_init(&c->retry, l, on_retry);
	cgn_timer_init(&c->due, l, on_due);
	for (size_t i = 0; i < CONTROL_WORKS; i++)
		c->works[i].c = c;
	c->reconciles = METRIC_ONE(t, OP_RECONCILES);
	c->applies = METRIC_ONE(t, OP_APPLIES);
	c->failures = METRIC_ONE(t, OP_FAILURES);
	c->drifts = METRIC_ONE(t, OP_DRIFTS);
	c->prefix = cgn_str_dupz(cgn_str_of(cfg->prefix));
	c->tag_text = cgn_str_dupz(cgn_str_of(cfg->tag));
	c->space = cgn_str_dup_maybe(cfg->space);
	c->images = (struct desired_images){c->prefix, c->tag_text};
	CGN_TRY(control_watch(c, err));
	*out = CGN_TAKE(&c);
	return CGN_OK;
}
