/*-------------------------------------------------------------------------
 *
 * clock.h
 *	  Literals that go by the clock.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_CLOCK_H
#define MIP_REPLICATION_CLOCK_H

#include "nodes/parsenodes.h"

/*
 * The first literal of a statement that a type of dates or times may understand by when it is read, as
 * 'now' and 'today'; or NULL. Names, comments, and functions as text have none.
 */
extern const char *mip_literal_by_clock(const RawStmt *raw, const char *command);

#endif							/* MIP_REPLICATION_CLOCK_H */
