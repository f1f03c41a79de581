"""Plain English words that most vocabularies hold as one token: the raw material of generated prompts. Words only;
how many tokens each is under a given tokenizer is measured elsewhere."""

from __future__ import annotations

_TEXT = """
    able above accept account across active address adult advance after again against agent agree ahead allow almost
    alone along already also always amount animal another answer appear apple area argue around arrive article artist
    aside attack author autumn average avoid away baby back balance band bank base basic battle beach bear beat beauty
    become before begin behind believe below beside best better between beyond bird black blood blue board boat body
    book born both bottom box boy brain branch bread break bridge brief bright bring broad brother brown build burn
    business busy button call camera camp capital captain card care carry case cash castle catch cause center central
    certain chain chair chance change chapter charge cheap check child choice church circle citizen city claim class
    clean clear climb clock close cloud coast coffee cold collect college color column come common company compare
    complete computer concern consider contain content contract control cook cool copy corner correct cost cotton
    could council count country couple course court cover create credit crime cross crowd culture cup current customer
    cycle daily damage dance danger dark data daughter day dead deal dear death debate decade decide deep degree demand
    desert design desire desk detail develop device differ dinner direct discover discuss disease distance divide
    doctor dog door double doubt down dozen draw dream dress drink drive drop drug dry due during dust duty each early
    earth ease east easy edge effect effort egg eight either elect element else empty end energy engine enjoy enough
    enter entire equal escape even evening event ever every exact example except exist expect expert explain express
    extra eye face fact factor fail fair faith fall family famous far farm fast father favor fear feature feed feel
    field fight figure fill film final find fine finger finish fire firm first fish five flat floor flow flower fly
    focus follow food foot force foreign forest forget form former forward found four frame free fresh friend front
    fruit fuel full fund future game garden gas gate gather general gentle gift girl give glass global goal gold good
    govern grand grass gray great green ground group grow growth guard guess guide gun habit hair half hall hand happen
    happy hard harm head health hear heart heat heavy height help here hero high hill history hold hole holiday home
    honest honor hope horse hospital host hotel hour house however huge human hundred hunt hurry husband ice idea image
    impact improve inch include income increase indeed index industry inside instead interest iron island issue item
    job join joint journal journey judge jump just justice keep key kind king kitchen knee knife know labor lack lady
    lake land language large last late laugh law lawyer layer lead leader leaf league learn least leather leave left
    legal length less lesson letter level library life lift light like limit line link list listen little live local
    lock long look loose lose loss lost loud love low luck lunch machine magazine main major make manage manner many
    map march mark market marriage mass master match material matter maybe meal mean measure meat media medical meet
    member memory mention message metal method middle might mile military milk million mind mine minister minor minute
    mirror miss mission mistake mix model modern moment money month mood moon moral more morning most mother motion
    motor mountain mouse mouth move movie much museum music must name narrow nation native nature near nearly neck need
    neighbor network never news next nice night nine none normal north nose note nothing notice novel number object
    obtain obvious occur ocean office officer often oil older once onion only open operate opinion option orange order
    origin other outside oven over owner pack page pain paint pair palace panel paper parent park part partner party
    pass past path patient pattern pause peace people perfect perhaps period permit person phone photo phrase piano
    pick picture piece pilot pipe place plain plan plane planet plant plate play please plenty pocket poem poet point
    police policy politics pool poor popular port position possible post potato pound power practice prepare present
    press pretty prevent price pride prince print prison private prize problem process produce product profit program
    project promise proof proper protect proud prove provide public pull purpose push quality quarter queen question
    quick quiet quite race radio rain raise range rapid rate rather reach react read ready real reason receive recent
    record reduce region regular relate remain remember remove repeat reply report request require research respect
    rest result return reveal review rice rich ride right ring rise risk river road rock role roof room root rough
    round route royal rule safe salt same sand save scale scene school science score screen search season seat second
    secret section secure seed seem select self sell send senior sense series serious serve service set seven several
    shade shake shape share sharp sheet shell shelter shift ship shirt shock shoe shoot shop short should shoulder show
    shower side sign signal silent silver similar simple since single sister site size skill skin sleep slight slow
    small smart smile smoke smooth snow social society soft soil soldier solid solve some song soon sort soul sound
    soup source south space speak special speech speed spend spirit split sport spread spring square stable staff stage
    stand standard star start state station stay steady steal steam steel step still stock stone stop store storm story
    strange stream street strength stretch strike string strong student studio study style subject succeed such sudden
    sugar suggest summer sun supply support sure surface surprise survey sweet swim switch symbol system table talk
    tall target task taste tax teach teacher team tell temple term test text thank theory thick thin thing think third
    those thought thousand thread three through throw ticket tight time tiny title today together tomorrow tone tongue
    tool tooth top topic total touch tough tour toward tower town track trade train travel treat tree trial trip
    trouble truck true trust truth turn twelve twenty twice type uncle under union unit until upper urban useful usual
    valley value variety various vast version very victim victory view village violence visit visual voice volume vote
    wage wait walk wall want warm wash waste watch water wave weak wealth weapon wear weather week weight welcome well
    west western wheel where which while white whole wide wife wild will wind window wine winter wise wish within
    without woman wonder wood word work world worry worth would write wrong yard year yellow yesterday yet young zero
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())
"""About a thousand different lower-case words."""
