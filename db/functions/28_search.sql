-- Search: the todos of a human, by state, and by what one knows of them.
--
-- What a person types is an id, an idempotency key, or the beginning of a title, and is tried in this order; the
-- first that finds something is the answer. An id and a key are found by an index, however old. Titles have
-- none: it would have to be written at every create and every transition, for something that is asked some times
-- a day. A title is looked for among some 18,000 of the newest todos instead (titled_todos): what is live or dead
-- is found further back than what is done, and with an endpoint, a queue or a state named one finds further back.
-- Without anything typed the answer is a list. States are those of the API (pending, claimed, done, failed) or
-- those of the board, which tell apart what the former do not: waiting and deferred, parked and dead.
-- Lists are merged from the heads of indexes that hold one queue and state each, so that what is done costs
-- nothing when what is dead is asked for. The order is always by id, newest first, and a cursor is an id: what
-- comes in meanwhile is above it, so that a page stays where it was. What is in quarantine is on no list but
-- its own; a search finds it.

create or replace function switchboard.check_board_state(p_state text) returns void
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    if p_state not in ('pending', 'claimed', 'done', 'failed', 'waiting', 'deferred', 'connected', 'parked', 'dead', 'quarantined') then
        perform refuse_argument('state', 'must be pending, claimed, done or failed, or waiting, deferred, connected, parked, dead or quarantined');
    end if;
end $$;
comment on function switchboard.check_board_state(text) is 'Refuses a state filter of find_todos that is no state; NULL is none.';

create or replace function switchboard.has_board_state(p_todo switchboard.todos, p_state text, p_at timestamptz) returns boolean
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return case p_state
        when 'connected' then p_todo.state = 'claimed'
        when 'parked' then p_todo.state = 'failed' and p_todo.due_at is not null
        when 'dead' then p_todo.state = 'failed' and p_todo.due_at is null
        when 'quarantined' then p_todo.state = 'pending' and p_todo.queue = 'quarantine'
        when 'waiting' then p_todo.state = 'pending' and p_todo.queue <> 'quarantine' and not is_deferred(p_todo.endpoint_id, p_todo.queue, p_at)
        when 'deferred' then p_todo.state = 'pending' and p_todo.queue <> 'quarantine' and is_deferred(p_todo.endpoint_id, p_todo.queue, p_at)
        else p_todo.state::text = coalesce(p_state, p_todo.state::text) end;
end $$;
comment on function switchboard.has_board_state(switchboard.todos, text, timestamptz) is 'Whether a todo is in a state, as find_todos names them, at p_at; NULL: always.';

create or replace function switchboard.newest_todos(p_human_id uuid, p_endpoint_id uuid, p_limit integer, p_before uuid) returns setof switchboard.todos
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return query
    select t.* from endpoints e cross join lateral (
        select * from todos t
        where t.endpoint_id = e.id and t.queue <> 'quarantine' and t.id < p_before
        order by t.id desc limit p_limit) t
    where e.human_id = p_human_id and e.id = coalesce(p_endpoint_id, e.id)
    order by t.id desc limit p_limit;
end $$;
comment on function switchboard.newest_todos(uuid, uuid, integer, uuid) is 'The newest todos of the human''s endpoints (p_endpoint_id: of one) in any state, below the id p_before (never null); past what is in quarantine. Reads endpoints, todos.';

create or replace function switchboard.search_kinds(p_state text) returns text[]
language sql immutable set search_path = switchboard, pg_temp
as $$
    select case when p_state is null then '{done,dead,pending,connected,parked}'::text[]
                when p_state = 'failed' then '{dead,parked}'
                when p_state = 'claimed' then '{connected}'
                when p_state in ('done', 'dead', 'connected', 'parked') then array[p_state]
                else '{pending}' end
$$;
comment on function switchboard.search_kinds(text) is 'Where todos in a state of find_todos are to be found: done, dead, pending, connected, parked; each has an index of its own. NULL: all.';

create or replace function switchboard.search_places(p_human_id uuid, p_endpoint_id uuid, p_queue text, p_state text, p_hidden boolean)
returns table (endpoint_id uuid, queue text)
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return query
    select m.endpoint_id, m.queue
    from endpoints e join queue_marks m on m.endpoint_id = e.id
    cross join lateral (select case when p_state in ('waiting', 'deferred') then is_deferred(m.endpoint_id, m.queue, clock()) end as shut offset 0) d
    where e.human_id = p_human_id and e.id = coalesce(p_endpoint_id, e.id) and m.queue = coalesce(p_queue, m.queue)
      and case when p_state = 'quarantined' then m.queue = 'quarantine'
               when p_state in ('waiting', 'deferred') then m.queue <> 'quarantine' and d.shut = (p_state = 'deferred')
               else m.queue <> 'quarantine' or p_queue is not null or p_hidden end;
end $$;
comment on function switchboard.search_places(uuid, uuid, text, text, boolean) is
'The queues of a human in which find_todos looks, with these filters. Quarantine only when it is named, by its queue or its state, or p_hidden. Reads endpoints, queue_marks, admission_policies.';

create or replace function switchboard.todos_in_state(
    p_human_id uuid, p_endpoint_id uuid, p_queue text, p_state text, p_limit integer, p_before uuid, p_until timestamptz)
returns setof switchboard.todos
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return query
    with places as materialized (
        select p.endpoint_id, p.queue from search_places(p_human_id, p_endpoint_id, p_queue, p_state, false) p
    ), found as (
        select f.* from places p cross join lateral (
            select t.endpoint_id, t.id from todos t
            where t.endpoint_id = p.endpoint_id and t.queue = p.queue and t.state = 'done' and t.completed_at is not null and t.id < p_before
            order by t.id desc limit p_limit) f
        where 'done' = any (search_kinds(p_state))
        union all
        select f.* from places p cross join lateral (
            select t.endpoint_id, t.id from todos t
            where t.endpoint_id = p.endpoint_id and t.queue = p.queue and t.state = 'failed' and t.completed_at is not null and t.id < p_before
            order by t.id desc limit p_limit) f
        where 'dead' = any (search_kinds(p_state))
        union all
        select f.* from places p cross join lateral (
            select t.endpoint_id, t.id from todos t
            where t.endpoint_id = p.endpoint_id and t.assignee is null and t.queue = p.queue and t.state = 'pending'
              and t.created_at <= p_until and t.id < p_before
            order by t.created_at desc, t.id desc limit p_limit) f
        where 'pending' = any (search_kinds(p_state))
        union all
        select f.endpoint_id, f.id from (select distinct p.endpoint_id from places p) e cross join lateral (
            select t.endpoint_id, t.id, t.queue from todos t
            where t.endpoint_id = e.endpoint_id and t.assignee is not null and t.state = 'pending' and t.id < p_before offset 0) f
        join places p on p.endpoint_id = f.endpoint_id and p.queue = f.queue
        where 'pending' = any (search_kinds(p_state))
        union all
        select f.* from places p cross join lateral (
            select t.endpoint_id, t.id from todos t
            where t.endpoint_id = p.endpoint_id and t.queue = p.queue and t.state = 'claimed' and t.id < p_before offset 0) f
        where 'connected' = any (search_kinds(p_state))
        union all
        select f.endpoint_id, f.id from (select distinct p.endpoint_id from places p) e cross join lateral (
            select t.endpoint_id, t.id, t.queue from todos t
            where t.endpoint_id = e.endpoint_id and t.due_at is not null and case t.state when 'failed' then true else false end and t.id < p_before offset 0) f
        join places p on p.endpoint_id = f.endpoint_id and p.queue = f.queue
        where 'parked' = any (search_kinds(p_state))
    )
    select t.* from (select f.endpoint_id, f.id from found f order by f.id desc limit p_limit) n
    cross join lateral (select * from todos k where k.endpoint_id = n.endpoint_id and k.id = n.id limit 1) t  -- by key, whatever is estimated
    order by t.id desc;
end $$;
comment on function switchboard.todos_in_state(uuid, uuid, text, text, integer, uuid, timestamptz) is
'Todos of a human in one state (NULL: any), newest first, below the id p_before, which was not made for later than p_until (infinity: none); filters as find_todos. Reads endpoints, queue_marks, todos, admission_policies.';

create or replace function switchboard.titled_todos(
    p_human_id uuid, p_title text, p_endpoint_id uuid, p_queue text, p_state text, p_limit integer, p_before uuid, p_until timestamptz)
returns setof switchboard.todos
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return query
    with places as materialized (
        select p.endpoint_id, p.queue from search_places(p_human_id, p_endpoint_id, p_queue, p_state, true) p
    ), depth as materialized (  -- so many of each queue and kind: reading them is what a search costs
        select greatest(50, case when p_state is null then 3000 else 10000 end / greatest(1, count(*)))::integer as each,
               greatest(100, 15000 / greatest(1, count(distinct p.endpoint_id)))::integer as newest
        from places p
    ), found as (
        select f.* from (select distinct p.endpoint_id from places p) e, depth d cross join lateral (  -- of an endpoint, in any state: these lie side by side
            select t.endpoint_id, t.id, t.title, t.queue from todos t
            where t.endpoint_id = e.endpoint_id and t.id < p_before order by t.id desc limit d.newest) f
        where p_state is null
        union all
        select f.* from places p, depth d, unnest('{done,dead}'::text[]) k (kind) cross join lateral (
            select t.endpoint_id, t.id, t.title, t.queue from todos t
            where t.endpoint_id = p.endpoint_id and t.queue = p.queue and t.state = case k.kind when 'done' then 'done'::todo_state else 'failed' end
              and t.completed_at is not null and t.id < p_before
            order by t.id desc limit d.each) f
        where k.kind = any (search_kinds(p_state)) and (p_state is not null or k.kind = 'dead')
        union all
        select f.* from places p, depth d cross join lateral (
            select t.endpoint_id, t.id, t.title, t.queue from todos t
            where t.endpoint_id = p.endpoint_id and t.assignee is null and t.queue = p.queue and t.state = 'pending'
              and t.created_at <= p_until and t.id < p_before
            order by t.created_at desc, t.id desc limit d.each) f
        where 'pending' = any (search_kinds(p_state))
        union all
        select f.* from (select distinct p.endpoint_id from places p) e, depth d cross join lateral (
            select t.endpoint_id, t.id, t.title, t.queue from todos t
            where t.endpoint_id = e.endpoint_id and t.assignee is not null and t.state = 'pending' and t.id < p_before
            limit d.newest / 10) f
        where 'pending' = any (search_kinds(p_state))
        union all
        select f.* from places p, depth d cross join lateral (
            select t.endpoint_id, t.id, t.title, t.queue from todos t
            where t.endpoint_id = p.endpoint_id and t.queue = p.queue and t.state = 'claimed' and t.id < p_before limit d.each) f
        where 'connected' = any (search_kinds(p_state))
        union all
        select f.* from (select distinct p.endpoint_id from places p) e, depth d cross join lateral (
            select t.endpoint_id, t.id, t.title, t.queue from todos t
            where t.endpoint_id = e.endpoint_id and t.due_at is not null and case t.state when 'failed' then true else false end and t.id < p_before
            order by t.due_at limit d.newest / 10) f
        where 'parked' = any (search_kinds(p_state))
    )
    select t.* from (
        select distinct f.endpoint_id, f.id from found f join places p on p.endpoint_id = f.endpoint_id and p.queue = f.queue
        where lower(left(f.title, length(p_title))) = lower(p_title)
        order by f.id desc limit p_limit) n
    cross join lateral (select * from todos k where k.endpoint_id = n.endpoint_id and k.id = n.id limit 1) t  -- by key, whatever is estimated
    order by t.id desc;
end $$;
comment on function switchboard.titled_todos(uuid, text, uuid, text, text, integer, uuid, timestamptz) is
'Todos of a human whose title begins with p_title, in any letter case, newest first, below the id p_before; filters as find_todos, quarantine too. Looked for among the newest 15,000, which the endpoints share, and some 3,000 more that are live or dead, which the queues share; with a state among 10,000 of that state. Reads endpoints, queue_marks, todos, admission_policies.';

create or replace function switchboard.find_todos(
    p_human_id uuid, p_q text default null, p_endpoint_id uuid default null, p_queue text default null, p_state text default null,
    p_limit integer default 50, p_before uuid default null)
returns setof switchboard.todos
language plpgsql stable set search_path = switchboard, pg_temp set jit = off set plan_cache_mode = force_custom_plan  -- which branches there are depends on the arguments
as $$
declare
    v_now    timestamptz := clock();
    v_limit  integer     := check_limit(p_limit, 50, 200);
    v_until  timestamptz := coalesce(id_time(p_before) + interval '1 ms', 'infinity');
    v_before uuid        := coalesce(p_before, 'ffffffff-ffff-ffff-ffff-ffffffffffff');
    v_id     uuid        := as_uuid(p_q);
begin
    perform check_board_state(p_state);
    perform check_text('q', p_q, 512);
    if p_q is null and p_queue is null and p_state is null then
        return query select * from newest_todos(p_human_id, p_endpoint_id, v_limit, v_before);
        return;
    elsif p_q is null then
        return query select * from todos_in_state(p_human_id, p_endpoint_id, p_queue, p_state, v_limit, v_before, v_until);
        return;
    end if;
    if v_id is not null then
        return query select t.* from endpoints e join todos t on t.endpoint_id = e.id
            where e.human_id = p_human_id and t.id = v_id and t.endpoint_id = coalesce(p_endpoint_id, t.endpoint_id) and t.queue = coalesce(p_queue, t.queue)
              and has_board_state(t, p_state, v_now);
        if found then
            return;
        end if;
    end if;
    if exists (select from keyed_todos(p_human_id, p_q, 'ffffffff-ffff-ffff-ffff-ffffffffffff', 1)) then
        return query select t.* from keyed_todos(p_human_id, p_q, v_before, 1000) t
            where t.endpoint_id = coalesce(p_endpoint_id, t.endpoint_id) and t.queue = coalesce(p_queue, t.queue) and has_board_state(t, p_state, v_now)
            order by t.id desc limit v_limit;
    else
        return query select * from titled_todos(p_human_id, p_q, p_endpoint_id, p_queue, p_state, v_limit, v_before, v_until);
    end if;
end $$;
comment on function switchboard.find_todos(uuid, text, uuid, text, text, integer, uuid) is
'Todos of the human''s endpoints, newest first. p_q: an id, an idempotency key, or the beginning of a title in any letter case: the first of these that finds something (at most 512 characters; NULL: all); p_endpoint_id, p_queue, p_state: only these (pending, claimed, done, failed, or waiting, deferred, connected, parked, dead, quarantined); p_limit: 1..200, above is clamped; p_before: only ids below, the last of the page before. Quarantine only for a search, its queue or its state. Errors: invalid_argument. Reads endpoints, queue_marks, todos, admission_policies.';

create or replace function switchboard.keyed_todos(p_human_id uuid, p_key text, p_before uuid, p_limit integer) returns setof switchboard.todos
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return query
    select t.* from endpoints e join todos t on t.endpoint_id = e.id
    where e.human_id = p_human_id and t.idempotency_key = p_key and t.idempotency_key is not null and t.completed_at is null and t.id < p_before
    union all
    select t.* from endpoints e cross join lateral (
        select * from todos k
        where k.endpoint_id = e.id and k.idempotency_key = p_key and k.idempotency_key is not null and k.completed_at is not null and k.id < p_before
        order by k.id desc limit p_limit) t
    where e.human_id = p_human_id;
end $$;
comment on function switchboard.keyed_todos(uuid, text, uuid, integer) is 'The todos of the human''s endpoints with this idempotency key, below the id p_before: the live one of each, and of those that ended the newest p_limit of each. Two probes an endpoint. Reads endpoints, todos.';
