/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/cluster/warm.h"

#include "base/mix/mix.h"

static uint32_t name_hash(struct cgn_str model)
{
	uint32_t h = (uint32_t)mix_murmur(mix_fnv1a(MIX_FNV1A, model.p, model.n));
	return h != 0 ? h : 1;
}

static uint32_t time_stamp(cgn_nsec now)
{
	return (uint32_t)(now / CGN_MSEC);
}

/* Return the age of a note. Stamps wrap around: one of the future, from a thread whose clock is ahead, is new. */
static cgn_nsec note_age(uint64_t note, cgn_nsec now)
{
	uint32_t ms = time_stamp(now) - (uint32_t)note;
	return ms > INT32_MAX ? 0 : (cgn_nsec)ms * CGN_MSEC;
}

/* Return the place for a note of |name|: its own, an empty one, or the oldest. */
static size_t place_for(const struct warm *w, uint32_t name, cgn_nsec now)
{
	size_t at = 0;
	cgn_nsec oldest = 0;
	for (size_t i = 0; i < WARM_NOTES; i++) {
		uint64_t note = atomic_load_explicit(&w->note[i], memory_order_relaxed);
		cgn_nsec age = note == 0 ? UINT64_MAX : note_age(note, now);
		if (note >> 32 == name)
			return i;
		if (age >= oldest) {
			oldest = age;
			at = i;
		}
	}
	return at;
}

void warm_clear(struct warm *w)
{
	for (size_t i = 0; i < WARM_NOTES; i++)
		atomic_store_explicit(&w->note[i], 0, memory_order_relaxed);
}

void warm_note(struct warm *w, struct cgn_str model, cgn_nsec now)
{
	uint32_t name = name_hash(model);
	atomic_store_explicit(&w->note[place_for(w, name, now)], (uint64_t)name << 32 | time_stamp(now),
		memory_order_relaxed);
}

struct warm_seen warm_look(const struct warm *w, struct cgn_str model, cgn_nsec load, cgn_nsec now)
{
	cgn_nsec life = load < WARM_MOST ? 2 * load + WARM_SLACK : WARM_MOST, age[WARM_NOTES];
	uint32_t name = name_hash(model);
	struct warm_seen s = {.noted = false};
	bool other[WARM_NOTES] = {false};
	for (size_t i = 0; i < WARM_NOTES; i++) {
		uint64_t note = atomic_load_explicit(&w->note[i], memory_order_relaxed);
		age[i] = note_age(note, now);
		if (note == 0 || age[i] >= life)
			continue;
		other[i] = note >> 32 != name;
		s.others += other[i];
		s.noted = s.noted || !other[i];
		s.ago = other[i] ? s.ago : age[i];
	}
	for (size_t i = 0; i < WARM_NOTES; i++)
		s.later += other[i] && age[i] < WARM_FRESH && (!s.noted || age[i] < s.ago);
	return s;
}
