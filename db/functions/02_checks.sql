-- Checks of arguments.
--
-- Programs in any language call this schema directly, so what may be stored is decided here and
-- nowhere else. Each check raises invalid_argument naming the field, or returns nothing.

create or replace function switchboard.check_text(p_field text, p_value text, p_max integer, p_required boolean default false) returns void
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    if p_value is null then
        if p_required then
            perform refuse_argument(p_field, 'is missing');
        end if;
    elsif p_value = '' or length(p_value) > p_max then
        perform refuse_argument(p_field, format('must have 1 to %s characters', p_max));
    end if;
end $$;
comment on function switchboard.check_text(text, text, integer, boolean) is
'Refuses an empty text, one of more than p_max characters and, when p_required, a missing one.';

create or replace function switchboard.check_queue(p_queue text, p_granted text[]) returns void
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    if p_queue is null or p_queue !~ '^[a-z0-9][a-z0-9._-]{0,62}$' then
        perform refuse_argument('queue', 'must be 1 to 63 of a-z, 0-9, dot, underscore and hyphen, and begin with a letter or digit');
    end if;
    if p_queue = 'quarantine' or not p_queue = any (p_granted) then
        perform refuse('forbidden', 'the grant of this endpoint does not cover that queue: use a granted one, or ask the owner to add it',
                       '{"field": "queue"}');
    end if;
end $$;
comment on function switchboard.check_queue(text, text[]) is
'Refuses a malformed queue name (invalid_argument), the reserved name quarantine and one outside p_granted (forbidden).';

create or replace function switchboard.check_json(p_field text, p_value jsonb) returns void
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
declare
    v_problem text := json_problem(p_value);
begin
    if v_problem is not null then
        perform refuse_argument(p_field, v_problem);
    end if;
end $$;
comment on function switchboard.check_json(text, jsonb) is
'Refuses what json_problem() objects to.';

create or replace function switchboard.json_problem(p_value jsonb) returns text
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
declare
    v_text text;
begin
    -- before it is rendered: 8 bytes of 1e131000 become 131 kB, and a payload of them a gigabyte
    if pg_column_size(p_value) > 200 and jsonb_path_exists(p_value,
            'strict $.** ? (@.type() == "number" && (@ >= 1e1000 || @ <= -1e1000 || @ > -1e-1000 && @ < 1e-1000 && @ != 0))') then
        return 'must have no number of more than 1000 digits: send it as text';
    end if;
    v_text := p_value::text;
    if v_text = 'null' then
        return 'must not be JSON null: leave it out, or send an object';
    elsif octet_length(v_text) > 262144 then  -- as rendered: an 8-byte 1e131000 renders to 131 kB
        return 'must render to at most 262144 bytes: store it elsewhere and send a reference';
    elsif is_small(v_text) then
        return null;
    elsif v_text ~ '[0-9.-]{250}' and exists (
            -- not jsonb_path_query(): what that takes grows with the square of the numbers
            select from jsonb_array_elements(jsonb_path_query_array(p_value, 'strict $.** ? (@.type() == "number")')) n
            where length(regexp_replace(n::text, '[^0-9]', '', 'g')) > 1000) then
        return 'must have no number of more than 1000 digits: send it as text';
    elsif is_deep(p_value) then
        return 'must be nested at most 64 deep: flatten it';
    end if;
    return null;
end $$;
comment on function switchboard.json_problem(jsonb) is
'Why p_value cannot be a payload or a result, as the end of a sentence; NULL when it can. Limits: not null, 256 KiB as rendered, depth 64, numbers of 1,000 digits.';

create or replace function switchboard.is_small(p_text text) returns boolean
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    return octet_length(p_text) < 1000 and octet_length(p_text) - octet_length(translate(p_text, '[{', '')) < 64;
end $$;
comment on function switchboard.is_small(text) is 'Whether a JSON text is too short for a number of more than 1,000 digits and has too few brackets to be nested more than 64 deep.';

create or replace function switchboard.is_deep(p_value jsonb) returns boolean
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    return jsonb_path_exists(p_value, 'strict $.**{64} ? (@.type() == "array" || @.type() == "object")');
end $$;
comment on function switchboard.is_deep(jsonb) is 'Whether p_value is nested more than 64 deep.';

create or replace function switchboard.check_limit(p_limit integer, p_default integer, p_max integer) returns integer
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    if p_limit < 1 then
        perform refuse_argument('limit', 'must be at least 1');
    end if;
    return least(coalesce(p_limit, p_default), p_max);
end $$;
comment on function switchboard.check_limit(integer, integer, integer) is
'p_limit clamped to p_max, p_default when NULL; below 1 is invalid_argument.';

create or replace function switchboard.one_line(p_text text, p_max integer) returns text
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    return left(btrim(regexp_replace(p_text, '[[:cntrl:]\u2028-\u202E\u2066-\u2069\s]+', ' ', 'g')), p_max);
end $$;
comment on function switchboard.one_line(text, integer) is
'p_text on one line: runs of white space, control characters and overrides of the writing direction become one blank; cut to p_max characters.';
