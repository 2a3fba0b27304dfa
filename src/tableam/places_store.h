/*-------------------------------------------------------------------------
 *
 * places_store.h
 *	  Places of changes, as they are stored with a prepared instance.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_PLACES_STORE_H
#define MIP_PLACES_STORE_H

#include "tableam/places.h"

extern bytea *mip_places_store(MipPlaces *places);

/* As mip_places_create() makes one; `stored` must not be toasted. */
extern MipPlaces *mip_places_load(const bytea *stored);

#endif							/* MIP_PLACES_STORE_H */
