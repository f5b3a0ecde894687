/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/tour.h"

#include <stdlib.h>

#define TOUR_TAG 0x51b70015U

struct sim_tour {
	uint32_t tag;
	struct cgn_post post;
	enum sim_tour_kind kind;
	struct sim_worker *home;
	struct http_exchange *x; /* NULL: the client went */
	struct sim_tour **slot;  /* the asker's pointer to us; NULL: the asker is gone */
	struct sim_faults faults;
	struct cgn_buf recent;
	unsigned next;           /* worker to visit */
	struct sim_snapshot each[];
};

static void tour_end(struct sim_tour *t)
{
	struct cgn_buf out = {0};
	struct http_field type = {CGN_STR("content-type"), CGN_STR("application/json")};
	if (t->kind == SIM_TOUR_METRICS) {
		type.value = CGN_STR("text/plain; version=0.0.4; charset=utf-8");
		sim_show_metrics(t->home->cfg, t->each, t->home->team->n, &out);
	} else {
		sim_show_state(t->home, t->each, t->home->team->n, cgn_buf_view(&t->recent), &out);
	}
	if (t->x != NULL) {
		*t->slot = NULL;
		http_exchange_reply(t->x, out.bad ? 500 : 200, &type, 1, cgn_buf_view(&out));
	}
	cgn_buf_fini(&out);
	cgn_buf_fini(&t->recent);
	t->tag = 0;
	free(t);
}

static void tour_visit(struct sim_tour *t, struct sim_worker *w)
{
	if (t->kind == SIM_TOUR_FAULTS) {
		uint64_t rng = w->faults.rng;
		w->faults = t->faults;
		w->faults.rng = rng;
	}
	t->each[w->rank] = (struct sim_snapshot){w->counts, sim_model_stats(w->model)};
	sim_show_recent(w, &t->recent);
}

/* On the loop of worker |next|, or at home again. */
static void tour_stop(struct cgn_loop *l, struct cgn_post *p)
{
	(void)l;
	struct sim_tour *t = CGN_CONTAINER(p, struct sim_tour, post);
	CGN_LIVE(t, TOUR_TAG);
	struct sim_team *team = t->home->team;
	if (t->next == team->n) {
		tour_end(t);
		return;
	}
	tour_visit(t, &team->workers[t->next]);
	t->next++;
	struct sim_worker *to = t->next < team->n ? &team->workers[t->next] : t->home;
	cgn_loop_post(to->loop, &t->post, tour_stop);
}

void sim_tour_start(struct sim_worker *w, struct http_exchange *x, enum sim_tour_kind kind, const struct sim_faults *faults,
	struct sim_tour **out)
{
	*out = NULL;
	struct sim_tour *t = calloc(1, sizeof *t + w->team->n * sizeof t->each[0]);
	if (t == NULL) {
		http_exchange_reply(x, 500, NULL, 0, CGN_STR("out of memory\n"));
		return;
	}
	t->tag = TOUR_TAG;
	t->kind = kind;
	t->home = w;
	t->x = x;
	t->slot = out;
	if (faults != NULL)
		t->faults = *faults;
	*out = t;
	cgn_loop_post(w->team->workers[0].loop, &t->post, tour_stop);
}

void sim_tour_forget(struct sim_tour *t)
{
	CGN_LIVE(t, TOUR_TAG);
	t->x = NULL;
	t->slot = NULL;
}
