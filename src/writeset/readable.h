/*-------------------------------------------------------------------------
 *
 * readable.h
 *	  Can a writeset be applied, as it is, to copies of the tables that it comes from?
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WRITESET_READABLE_H
#define MIP_WRITESET_READABLE_H

#include "tableam/places.h"
#include "writeset/format.h"

/*
 * Errors out if a value of it cannot be read again, or not by everybody, or has no room in its
 * table or an index. `places`: where the changes are. The transaction that it is of has its tables locked. Code of these is executed with
 * their owners' rights, and may not write.
 */
extern void mip_check_readable(const MipwSet *set, MipPlaces *places);

/*
 * Has `set` make the settings by which indexes are given the same everywhere, and find the same
 * room: who publishes looks by them, and who applies has them.
 */
extern void mip_set_as_applied(void (*set) (const char *name, const char *value));

#endif							/* MIP_WRITESET_READABLE_H */
