/* SPDX-License-Identifier: Apache-2.0 */
/* scraped: readings in texts that the program scrapes anyway. */
#include <stdlib.h>
#include <string.h>

#include "policy/power/powertext/powertext.h"
#include "powerpoll_priv.h"

#define SCRAPED_READINGS 512
#define FORGET_AFTER     20 /* Times max_age */

static struct powerpoll_source *scraped_find(const struct powerpoll *p, const char *node)
{
	struct powerpoll_source *s = p->first;
	while (s != NULL && !(s->max_age > 0 && strcmp(s->node, node) == 0))
		s = s->next;
	return s;
}

/* Give the readings of |t| to |s|, which owns them then. */
static void readings_give(struct powerpoll_source *s, const struct powertext *t, cgn_nsec now,
	cgn_nsec max_age)
{
	free(s->made);
	s->made = CGN_GROWN(t->out, t->n);
	s->n_made = t->n;
	s->last = now;
	s->max_age = max_age;
	(void)cgn_str_copyz(s->left_out, sizeof s->left_out, cgn_str_of(t->why));
}

void powerpoll_take_text(struct powerpoll *p, const char *node, struct cgn_str text, cgn_nsec max_age)
{
	CGN_LIVE(p, POWERPOLL_TAG);
	cgn_nsec now = cgn_loop_now(p->loop);
	struct powerpoll_source *s = scraped_find(p, node);
	struct powertext t = {.node = node, .time = now, .max_age = max_age, .cap = SCRAPED_READINGS};
	t.out = CGN_NEW_ARRAY(struct power_reading, SCRAPED_READINGS);
	bool is_power = powertext_read(text, &t) && t.n > 0;
	if (is_power && s == NULL)
		s = powerpoll_source_add(p, node, "scrape");
	if (is_power && s != NULL)
		readings_give(s, &t, now, max_age);
	else
		free(t.out);
}

void powerpoll_scraped_look(struct powerpoll_source *s, cgn_nsec now)
{
	s->reading = s->made;
	s->n = s->n_made;
	s->is_up = now < s->last + s->max_age;
	s->why = s->is_up ? s->left_out : "it is not scraped any more: see /targets";
}

bool powerpoll_scraped_is_over(const struct powerpoll_source *s, cgn_nsec now)
{
	return s->max_age > 0 && now > s->last + FORGET_AFTER * s->max_age;
}
