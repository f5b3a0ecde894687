/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/kv/wear/wear.h"

#include "policy/kv/evict/evict.h"

#define DAY    (24 * 3600 * CGN_SEC)
#define SAMPLE 32U

/* The yield that counts while little of a class was written: as if a 64th of the tier had been. */
static const double expected[WEAR_CLASSES] =
	{[WEAR_ONCE] = 0.25, [WEAR_USED] = 0.5, [WEAR_OFTEN] = 0.75, [WEAR_BACK] = 0.75};

void wear_init(struct wear *w, uint64_t tier_bytes, uint64_t day_bytes, cgn_nsec now)
{
	*w = (struct wear){.tier_bytes = tier_bytes,
		.day_bytes = day_bytes,
		.left = (double)day_bytes,
		.at = now};
}

enum wear_class wear_class_of(unsigned worth)
{
	if ((worth & EVICT_CAME_BACK) != 0)
		return WEAR_BACK;
	if ((worth & EVICT_USED_MORE) != 0)
		return WEAR_OFTEN;
	return (worth & EVICT_USED) != 0 ? WEAR_USED : WEAR_ONCE;
}

static void budget_refill(struct wear *w, cgn_nsec now)
{
	double most = (double)w->day_bytes;
	if (now > w->at) {
		w->left += most * (double)cgn_since(now, w->at) / (double)DAY;
		w->at = now;
	}
	w->left = w->left < most ? w->left : most;
}

void wear_resume(struct wear *w, double left, cgn_nsec away)
{
	cgn_nsec now = w->at;
	w->left = left;
	w->at = 0;
	budget_refill(w, away);
	w->at = now;
}

static double class_yield(const struct wear *w, enum wear_class c)
{
	double weight = (double)w->tier_bytes / 64 + 1;
	return (w->read[c] + expected[c] * weight) / (w->wrote[c] + weight);
}

static double average_yield(const struct wear *w)
{
	double wrote = 1, read = 0;
	for (enum wear_class c = 0; c < WEAR_CLASSES; c++) {
		wrote += w->wrote[c];
		read += w->read[c];
	}
	return read / wrote;
}

/* Returns how many classes have a higher yield. */
static unsigned class_rank(const struct wear *w, enum wear_class of)
{
	unsigned rank = 0;
	for (enum wear_class c = 0; c < WEAR_CLASSES; c++)
		rank += class_yield(w, c) > class_yield(w, of);
	return rank;
}

static bool budget_has(const struct wear *w, uint64_t bytes, double reserve)
{
	return w->day_bytes == 0 || w->left >= (double)bytes + reserve * (double)w->day_bytes;
}

static bool class_is_wanted(const struct wear *w, enum wear_class c, uint64_t bytes, bool room)
{
	static const double reserves[WEAR_CLASSES] = {0, 1. / 32, 1. / 16, 1. / 8};
	if (room && budget_has(w, bytes, 1. / 8))
		return true;
	double yield = class_yield(w, c);
	return yield >= 1. / 8 && yield >= average_yield(w) / 2 &&
		budget_has(w, bytes, reserves[class_rank(w, c)]);
}

bool wear_admits(struct wear *w, enum wear_class c, uint64_t bytes, bool room, cgn_nsec now)
{
	budget_refill(w, now);
	if (class_is_wanted(w, c, bytes, room))
		return true;
	if (++w->refused % SAMPLE != 0)
		return false;
	return budget_has(w, bytes, 1. / 32);
}

static void counts_age(struct wear *w)
{
	double wrote = 0;
	for (enum wear_class c = 0; c < WEAR_CLASSES; c++)
		wrote += w->wrote[c];
	if (wrote < 2 * (double)w->tier_bytes)
		return;
	for (enum wear_class c = 0; c < WEAR_CLASSES; c++) {
		w->wrote[c] /= 2;
		w->read[c] /= 2;
	}
}

void wear_wrote(struct wear *w, enum wear_class c, uint64_t bytes)
{
	w->wrote[c] += (double)bytes;
	counts_age(w);
}

void wear_spent(struct wear *w, uint64_t bytes)
{
	w->left = w->left > (double)bytes ? w->left - (double)bytes : 0;
}

void wear_read(struct wear *w, enum wear_class c, uint64_t bytes)
{
	w->read[c] += (double)bytes;
}
